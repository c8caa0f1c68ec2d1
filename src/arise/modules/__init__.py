"""The trained policy and its LightningModule."""
