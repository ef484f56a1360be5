"""The pool that calls a handler: what its parts are, their order by key, threads and worker processes."""
