"""A comparison of delayjax with the code that people write or install instead."""
