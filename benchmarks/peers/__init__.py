"""delayjax beside what people write or install instead."""
