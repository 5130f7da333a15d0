"""The two model classes the embedded engine can run, one file each, named as SGLang names them."""
