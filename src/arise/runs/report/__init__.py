"""The run report: one self-contained HTML file made from a run's folder."""
