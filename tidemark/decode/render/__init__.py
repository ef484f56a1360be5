"""Text forms of changes: test_decoding's lines, JSON lines and Debezium's JSON."""
