"""The loops behind the service: claims, maintenance, outbox."""
