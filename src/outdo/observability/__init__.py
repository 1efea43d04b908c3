"""Observe training: metrics, the token record, the page, the doctor, and `outdo explain`."""
