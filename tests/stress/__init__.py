"""What goes wrong only at an unlucky instant, or after long: `VOLTA_STRESS` says how often to try."""
