"""ForestColl: schedules of optimal throughput on any network (dissertation, Chapter 4)."""
