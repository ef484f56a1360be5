"""What servers are made to do."""
