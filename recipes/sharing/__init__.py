"""How recipes travel: packs as files, and registries that hold them."""
