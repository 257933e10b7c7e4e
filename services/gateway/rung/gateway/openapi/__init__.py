"""The OpenAPI document: made from the routes, with examples; what of it releases promise."""
