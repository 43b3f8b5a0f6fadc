"""From a manifest to a Study: schema, mistakes, variants, grid."""
