"""What a run will need and where it will go, told before it starts (`dry_run=true`)."""
