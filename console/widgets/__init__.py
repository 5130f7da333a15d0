"""One public widget a file; a widget receives values, never text to parse."""
