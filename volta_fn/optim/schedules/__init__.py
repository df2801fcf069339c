"""Schedules: functions from the number of steps to a learning rate."""
