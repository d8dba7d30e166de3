"""What each piece of a model does, measured: functions of (params, data, config) that leave results to be drawn."""
