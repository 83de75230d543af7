// Makes an allocation of C++ fail on purpose; with tests/support/failing_new.cpp.
#pragma once

// Allocation `number` of this thread from now on fails; 0: none. Returns how many were left to the former one.
extern "C" int fail_allocation(int number);
