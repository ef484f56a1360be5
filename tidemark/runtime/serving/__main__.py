"""`python -m tidemark.runtime.serving`: the outbox server; see `tidemark.runtime.serving.program`."""

from tidemark.runtime.serving.program import main

if __name__ == "__main__":
    main()
