"""What a corpus holds: receipts, the ledgers they are folded into, views, accounting, and readers."""
