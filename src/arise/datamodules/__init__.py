"""The task stream as a LightningDataModule."""
