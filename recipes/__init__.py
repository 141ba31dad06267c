"""How the small models that ship were trained. Not installed with the package."""
