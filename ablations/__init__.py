"""What to run: studies (YAML files in this folder) and the package that plans and dispatches them."""
