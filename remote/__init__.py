"""Everything that touches a host: bytes, commands, processes. It judges nothing."""
