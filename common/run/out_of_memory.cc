#include "common/run/out_of_memory.h"

#include <unistd.h>

#include <new>
#include <string_view>

namespace nsa {

void ExitWhenMemoryIsRefused() {
  std::set_new_handler([] {
    constexpr std::string_view kLine = "memory ran out: the system refused an allocation\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine.data(), kLine.size());
    _exit(kExitOutOfMemory);
  });
}

}  // namespace nsa
