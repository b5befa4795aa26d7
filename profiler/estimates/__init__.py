"""Estimates of layers, links and hosts from datasheets and calibrated constants."""
