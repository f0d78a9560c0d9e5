"""JSON Schemas: read into a normal form, which is then lowered to llguidance, watched and closed."""
