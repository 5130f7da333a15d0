"""Programs that run on a host: standard library only, Python 3.9 and newer; remote.scripts sends them."""
