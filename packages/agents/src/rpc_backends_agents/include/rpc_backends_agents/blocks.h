// Reusable memory for the large parts of messages.
//
// The kernel clears every page that it hands out, which takes as long as receiving a large message. Unused blocks,
// up to kKept bytes, are therefore kept for reuse. They are marked as free for the kernel, which takes them only if
// memory is short. They do not come from malloc(): blocks that live long would leave gaps between its own.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

namespace blocks {

// Bytes of all blocks that are kept.
inline constexpr size_t kKept = size_t{256} << 20;
inline constexpr size_t kLargePage = size_t{2} << 20;
// Bytes of the largest block that has huge pages from the start. Larger ones get them when they are used often, if the
// engine gains by it: the kernel may have none ready, or the host of a virtual machine may have to back them first.
// Measured for the first message of 256 MiB: 0.2 to 0.4 s with small pages, 0.4 to 1.0 s with huge ones. Measured for
// later echoes of 64 MiB: half the processor time on UCX, whose process_vm_readv looks up each page, and the same
// through sockets.
inline constexpr size_t kMostHuge = size_t{16} << 20;
// After how many uses of blocks of one size the next ones get huge pages. Where they must be backed first, they cost as
// much as about six messages save.
inline constexpr int kOften = 4;
// Of how many sizes uses are counted.
inline constexpr size_t kMostSizes = 64;
// Granularity of block sizes without huge pages.
inline constexpr size_t kStep = size_t{64} << 10;
// malloc() is as fast for smaller sizes.
inline constexpr size_t kLeastKept = size_t{128} << 10;

struct alignas(16) Unit {
  char bytes[16];
};

struct Block {
  void* memory = nullptr;
  size_t size = 0;
  bool is_huge = false;
};

// Returns a block without memory if there is none. A block of huge pages is aligned to them.
inline Block map(size_t size, bool huge) {
  const size_t spare = huge ? kLargePage : 0;
  void* const mapped = size + spare < size
                           ? MAP_FAILED
                           : mmap(nullptr, size + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return {};
  }
  if (!huge) {
    return {mapped, size, false};
  }
  char* const begin = static_cast<char*>(mapped);
  const size_t before = kLargePage - reinterpret_cast<uintptr_t>(begin) % kLargePage;  // not 0
  munmap(begin, before);
  if (before < spare) {
    munmap(begin + before + size, spare - before);
  }
  madvise(begin + before, size, MADV_HUGEPAGE);
  return {begin + before, size, true};
}

inline void unmap(Block block) {
  munmap(block.memory, block.size);
}

// Rounds up to whole huge pages.
inline size_t whole_large_pages(size_t size) {
  return (size + kLargePage - 1) / kLargePage * kLargePage;
}

// Returns a block of at least this size with huge pages instead of this one; its contents are lost. Returns this one if
// there is no memory.
inline Block in_huge_pages(Block block) {
  const Block huge = map(whole_large_pages(block.size), true);
  if (huge.memory == nullptr) {
    return block;
  }
  unmap(block);
  return huge;
}

// Only tries the lock: in a forked child the thread that held it may not exist any more.
class Kept {
 public:
  // Returns none if no block fits.
  Block take(size_t size) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) {
      return {};
    }
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      if (block->size >= size && block->size / 2 <= size) {
        const Block reused = *block;
        blocks_.erase(std::next(block).base());
        bytes_ -= reused.size;
        return reused;
      }
    }
    return {};
  }

  // `size`: for which it was taken.
  void give(Block block, size_t size) {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (block.size > kKept || madvise(block.memory, block.size, MADV_FREE) != 0 || !lock.try_lock()) {
      unmap(block);
      return;
    }
    count_use(size);
    blocks_.push_back(block);
    bytes_ += block.size;
    while (bytes_ > kKept) {
      bytes_ -= blocks_.front().size;
      unmap(blocks_.front());
      blocks_.pop_front();
    }
  }

  // Whether blocks of this size were often taken and given back, kept or not: blocks of other sizes may take the place
  // of those that are kept.
  bool is_used_often(size_t size) {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    return lock && std::any_of(uses_.begin(), uses_.end(),
                               [size](const Uses& uses) { return uses.size == size && uses.count >= kOften; });
  }

 private:
  struct Uses {
    size_t size = 0;  // for which the blocks were taken
    int count = 0;
  };

  void count_use(size_t size) {
    if (size <= kMostHuge) {
      return;  // has huge pages from the start
    }
    auto uses = std::find_if(uses_.begin(), uses_.end(), [size](const Uses& of) { return of.size == size; });
    if (uses == uses_.end()) {
      uses = uses_.begin() + static_cast<std::ptrdiff_t>(next_uses_++ % kMostSizes);
      *uses = {size, 0};
    }
    uses->count = std::min(uses->count + 1, kOften);
  }

  std::mutex mutex_;
  std::deque<Block> blocks_;  // the most recently used one is last
  size_t bytes_ = 0;
  std::array<Uses, kMostSizes> uses_{};
  size_t next_uses_ = 0;
};

// Never destroyed, because tensors may be released after all other objects.
inline Kept& kept() {
  static Kept& blocks = *new Kept;
  return blocks;
}

}  // namespace blocks

// Returns uninitialised memory, aligned to 16 bytes. A large block is kept for reuse when its owner is destroyed.
// `gains_by_huge_pages`: whether the largest blocks get huge pages when they are used often. Throws std::bad_alloc.
inline Part take_block(size_t size, bool gains_by_huge_pages = false) {
  using namespace blocks;
  if (size < kLeastKept) {
    auto owner = std::make_shared_for_overwrite<Unit[]>(size / sizeof(Unit) + 1);
    return {owner.get(), size, std::move(owner)};
  }
  // Huge pages, which are fewer to find and clear, if that wastes at most half of the memory.
  const size_t page = size >= kLargePage / 2 && size <= kMostHuge ? kLargePage : kStep;
  const size_t whole = (size + page - 1) / page * page;
  if (whole < size) {
    throw std::bad_alloc();
  }
  const bool is_often_huge = gains_by_huge_pages && whole > kMostHuge && kept().is_used_often(whole);
  Block block = kept().take(whole);
  if (block.memory == nullptr) {
    const bool is_huge = is_often_huge || page == kLargePage;
    block = map(is_huge ? whole_large_pages(whole) : whole, is_huge);
    if (block.memory == nullptr) {
      throw std::bad_alloc();
    }
  } else if (is_often_huge && !block.is_huge) {
    block = in_huge_pages(block);
  }
  return {block.memory, size,
          std::shared_ptr<void>(block.memory, [block, whole](void*) { kept().give(block, whole); })};
}

}  // namespace rpc_backends
