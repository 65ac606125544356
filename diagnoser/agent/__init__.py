"""Runs on the cluster's side: finds jobs, ships their logs, and carries out plans. The service never imports it."""
