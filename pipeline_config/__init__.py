"""Plain data: settings, presets, errors and the process environment. Imports no engine."""
