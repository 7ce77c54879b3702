"""For those who test engines and environments: conformance suites, and environments that misbehave."""
