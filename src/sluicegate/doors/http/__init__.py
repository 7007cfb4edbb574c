"""The decision API over HTTP: a lean server and the routes of ``/v1``."""
