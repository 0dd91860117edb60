"""Which part of the cache a decode step attends to: schedules, presets, calibration."""
