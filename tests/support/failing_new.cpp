// Loaded with LD_PRELOAD: makes an allocation of C++ fail on purpose, on the thread that asks for it.
#include <cstdlib>
#include <new>

namespace {

thread_local int left = 0;  // the allocations up to the one that fails; 0: none fails

}  // namespace

// The allocation number `number` of this thread from now on fails; 0: none. Returns how many were left to the former
// one.
extern "C" int fail_allocation(int number) {
  const int before = left;
  left = number;
  return before;
}

void* operator new(std::size_t size) {
  if (left > 0 && --left == 0) {
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
