"""Commands that start or join ranks: the request is checked, ranks are started, each rank joins and trains."""
