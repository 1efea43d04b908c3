"""What a step did: metrics, the token record, the page, the doctor, and `outdo explain`."""
