"""Pictures over HTTP: uploads, decoding apart from the service, thumbnails, archives."""
