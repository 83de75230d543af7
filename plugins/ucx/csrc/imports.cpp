#include "imports.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace rpc_backends::ucx {

namespace {

#if defined(__x86_64__)
constexpr uint32_t kKinds[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#elif defined(__aarch64__)
constexpr uint32_t kKinds[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#else
constexpr uint32_t kKinds[] = {0};  // R_..._NONE: no import is found
#endif

struct Library {
  uintptr_t address = 0;  // within the library
  uintptr_t base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  uintptr_t read_only = 0, read_only_end = 0;  // read-only after relocation
};

int find_library(dl_phdr_info* info, size_t /*size*/, void* data) {
  auto& library = *static_cast<Library*>(data);
  Library candidate = library;
  candidate.base = info->dlpi_addr;
  bool contains = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD) {
      contains |= library.address >= begin && library.address < begin + segment.p_memsz;
    } else if (segment.p_type == PT_DYNAMIC) {
      candidate.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    } else if (segment.p_type == PT_GNU_RELRO) {
      candidate.read_only = begin;
      candidate.read_only_end = begin + segment.p_memsz;
    }
  }
  if (!contains) {
    return 0;
  }
  library = candidate;
  return 1;
}

// The tables of a library's dynamic section.
struct Tables {
  explicit Tables(const Library& library) {
    // The loader has turned the offsets in this section into addresses, on most systems.
    const auto at = [&](const ElfW(Dyn) & entry) {
      return entry.d_un.d_ptr < library.base ? library.base + entry.d_un.d_ptr : entry.d_un.d_ptr;
    };
    size_t plt_size = 0, data_size = 0;
    const ElfW(Rela)* plt = nullptr, *data = nullptr;
    for (const ElfW(Dyn)* entry = library.dynamic; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols = reinterpret_cast<const ElfW(Sym)*>(at(*entry));
          break;
        case DT_STRTAB:
          names = reinterpret_cast<const char*>(at(*entry));
          break;
        case DT_JMPREL:
          plt = reinterpret_cast<const ElfW(Rela)*>(at(*entry));
          break;
        case DT_PLTRELSZ:
          plt_size = entry->d_un.d_val;
          break;
        case DT_RELA:
          data = reinterpret_cast<const ElfW(Rela)*>(at(*entry));
          break;
        case DT_RELASZ:
          data_size = entry->d_un.d_val;
          break;
        default:
          break;
      }
    }
    add(plt, plt_size);
    add(data, data_size);
  }

  void add(const ElfW(Rela) * table, size_t bytes) {
    const size_t count = table == nullptr ? 0 : bytes / sizeof *table;
    relocations.insert(relocations.end(), table, table + count);
  }

  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  std::vector<ElfW(Rela)> relocations;
};

bool write(const Library& library, void** slot, void* value) {
  const auto address = reinterpret_cast<uintptr_t>(slot);
  const auto page_size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  void* const page = reinterpret_cast<void*>(address / page_size * page_size);
  const bool is_read_only = address >= library.read_only && address < library.read_only_end;
  if (is_read_only && ::mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  std::atomic_ref<void*>(*slot).store(value);
  // The page may also hold data behind the read-only part, so it is made read-only again only if it lies within it.
  if (is_read_only && reinterpret_cast<uintptr_t>(page) + page_size <= library.read_only_end) {
    ::mprotect(page, page_size, PROT_READ);
  }
  return true;
}

}  // namespace

bool replace_imports(const void* address, const std::vector<Import>& imports) {
  Library library;
  library.address = reinterpret_cast<uintptr_t>(address);
  if (dl_iterate_phdr(&find_library, &library) == 0) {
    return false;
  }
  const Tables tables(library);
  if (tables.symbols == nullptr || tables.names == nullptr) {
    return false;
  }
  struct Slot {
    void** slot;
    void* value;
  };
  std::vector<Slot> slots;
  for (const Import& import : imports) {
    const size_t before = slots.size();
    for (const ElfW(Rela) & relocation : tables.relocations) {
      const auto kind = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
      const auto symbol = ELF64_R_SYM(relocation.r_info);
      if (symbol != 0 && std::find(std::begin(kKinds), std::end(kKinds), kind) != std::end(kKinds) &&
          std::strcmp(tables.names + tables.symbols[symbol].st_name, import.name) == 0) {
        slots.push_back({reinterpret_cast<void**>(library.base + relocation.r_offset), import.replacement});
      }
    }
    if (slots.size() == before) {
      return false;
    }
  }
  return std::all_of(slots.begin(), slots.end(),
                     [&](const Slot& slot) { return write(library, slot.slot, slot.value); });
}

}  // namespace rpc_backends::ucx
