#include "worker/agent/dump/unwinder.h"

#include <cxxabi.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"

namespace nsa::agent {
namespace {

constexpr size_t kMaxFrames = 128;
constexpr size_t kMaxName = 300;
constexpr uint64_t kSearchedBytes = 16 << 10;  // of the stack, for callers
constexpr size_t kFewestFrames = 3;            // of a stack that was searched for

std::string Demangle(const char* name) {
  int status = 0;
  char* const plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 && plain != nullptr ? plain : name;
  std::free(plain);
  return CutText(text, kMaxName);
}

// "FILE:LINE" without leading "../", which lead from the build folder to the sources.
std::string ShortSource(const char* file, int line) {
  const std::string path = std::filesystem::path(file).lexically_normal().string();
  size_t begin = 0;
  while (path.compare(begin, 3, "../") == 0) begin += 3;
  return absl::StrFormat("%s:%d", path.substr(begin), line);
}

// No separate debug files: searching for them takes time, and ours are inside the programs.
int FindNoDebugInfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                    GElf_Word, char**) {
  return -1;
}

const Dwfl_Callbacks kCallbacks = {.find_elf = dwfl_linux_proc_find_elf,
                                   .find_debuginfo = FindNoDebugInfo,
                                   .section_address = nullptr,
                                   .debuginfo_path = nullptr};

}  // namespace

struct Unwinder::State {
  pid_t pid = 0;
  Dwfl* dwfl = nullptr;
  const ThreadSnapshot* current = nullptr;
  user_regs_struct registers = {};                    // where the walk of the current stack starts
  std::map<uint64_t, std::vector<StackFrame>> known;  // the frames of each address looked up so far

  ~State() {
    if (dwfl != nullptr) dwfl_end(dwfl);
  }

  bool ReadMemory(uint64_t address, Dwarf_Word* out) const {
    const ThreadSnapshot& thread = *current;
    const uint64_t at = address - thread.stack_begin;  // large where the address is before it
    if (thread.stack.size() >= sizeof *out && at <= thread.stack.size() - sizeof *out) {
      std::memcpy(out, thread.stack.data() + at, sizeof *out);
      return true;
    }
    return ReadProcess(address, out, sizeof *out);
  }
  bool ReadProcess(uint64_t address, void* out, size_t bytes) const {
    const iovec local = {out, bytes};
    const iovec remote = {reinterpret_cast<void*>(address), bytes};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
  }

  bool SetRegisters(Dwfl_Thread* thread) const {
    const user_regs_struct& r = registers;
    // In DWARF's order for x86-64; the last one, the return address, is the program counter here.
    const Dwarf_Word values[17] = {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
                                   r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
    return dwfl_thread_state_registers(thread, 0, 17, values);
  }

  // The addresses of a stack, innermost first, as far as it can be unwound.
  struct Stack {
    std::vector<uint64_t> addresses;
    size_t known = 0;    // so many of the first are in the program or its libraries
    bool whole = false;  // searched for, and down to the thread's first function
  };
  Stack Walk(const user_regs_struct& from);

  // Of the stack of a function without call frame information.
  enum class Call { kNone, kPossible, kOther };  // the last: of another function
  struct ReturnAddress {
    uint64_t place, address;
    Call call;
  };
  std::vector<uint64_t> SearchCallers();
  Stack WalkFromCaller(const ReturnAddress& caller, uint64_t next);
  bool BeginsAThread(uint64_t address);
  Call CallBefore(uint64_t address) const;
  bool MayBeginHere(Dwfl_Module* module, uint64_t address) const;

  const std::vector<StackFrame>& FramesAt(uint64_t pc);
  std::vector<StackFrame> Lookup(uint64_t pc);
  void AddInlined(Dwfl_Module* module, uint64_t pc, std::vector<StackFrame>* frames);
};

absl::StatusOr<std::unique_ptr<Unwinder>> Unwinder::Create(pid_t pid) {
  auto state = std::make_unique<Unwinder::State>();
  state->pid = pid;
  state->dwfl = dwfl_begin(&kCallbacks);
  const auto error = [pid](const char* what) {
    return absl::UnavailableError(absl::StrFormat(
        "%s of process %d: %s", what, pid,
        dwfl_errno() != 0 ? dwfl_errmsg(-1) : "none (a kernel thread, or it has ended)"));
  };
  if (state->dwfl == nullptr) return error("libdwfl");
  if (dwfl_linux_proc_report(state->dwfl, pid) != 0) return error("mappings");
  if (dwfl_report_end(state->dwfl, nullptr, nullptr) != 0) return error("mappings");
  static constexpr Dwfl_Thread_Callbacks kThreadCallbacks = {
      .next_thread = [](Dwfl*, void*, void**) -> pid_t { return 0; },
      .get_thread =
          [](Dwfl*, pid_t, void* arg, void** thread_arg) {
            *thread_arg = arg;
            return true;
          },
      .memory_read =
          [](Dwfl*, Dwarf_Addr address, Dwarf_Word* out, void* arg) {
            return static_cast<Unwinder::State*>(arg)->ReadMemory(address, out);
          },
      .set_initial_registers =
          [](Dwfl_Thread* thread, void* arg) {
            return static_cast<Unwinder::State*>(arg)->SetRegisters(thread);
          },
      .detach = nullptr,
      .thread_detach = nullptr};
  if (!dwfl_attach_state(state->dwfl, nullptr, pid, &kThreadCallbacks, state.get())) {
    return error("architecture");
  }
  return std::unique_ptr<Unwinder>(new Unwinder(std::move(state)));
}

Unwinder::Unwinder(std::unique_ptr<State> state) : state_(std::move(state)) {}
Unwinder::~Unwinder() = default;

std::vector<StackFrame> Unwinder::Unwind(const ThreadSnapshot& snapshot) {
  state_->current = &snapshot;
  const State::Stack stack = state_->Walk(snapshot.registers);
  std::vector<uint64_t> addresses = stack.addresses;
  if (addresses.empty()) addresses.push_back(snapshot.registers.rip);
  size_t searched = addresses.size();  // index of the first address that was searched for
  if (stack.known <= 1) {
    const std::vector<uint64_t> callers = state_->SearchCallers();
    if (!callers.empty()) addresses.resize(searched = 1);
    addresses.insert(addresses.end(), callers.begin(), callers.end());
  }
  std::vector<StackFrame> frames;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const std::vector<StackFrame>& at = state_->FramesAt(addresses[i]);
    const size_t first = frames.size();
    frames.insert(frames.end(), at.begin(), at.end());
    if (i == searched) frames[first].searched = true;
  }
  return frames;
}

Unwinder::State::Stack Unwinder::State::Walk(const user_regs_struct& from) {
  registers = from;
  Stack stack;
  const auto collect = [](Dwfl_Frame* frame, void* arg) -> int {
    auto& addresses = *static_cast<std::vector<uint64_t>*>(arg);
    Dwarf_Addr pc = 0;
    bool is_activation = false;
    if (!dwfl_frame_pc(frame, &pc, &is_activation) || pc == 0) return DWARF_CB_ABORT;
    // A return address points behind the call, perhaps to the next line or function.
    addresses.push_back(is_activation ? pc : pc - 1);
    return addresses.size() < kMaxFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
  };
  // The result says little: many good stacks end with an error, and some broken ones without.
  dwfl_getthread_frames(dwfl, current->tid, collect, &stack.addresses);
  const auto unknown = std::ranges::find_if(
      stack.addresses, [this](uint64_t pc) { return dwfl_addrmodule(dwfl, pc) == nullptr; });
  stack.known = static_cast<size_t>(unknown - stack.addresses.begin());
  return stack;
}

// Searches the stack for the callers of the function at the program counter; prefers a chain that
// reaches the beginning of the thread. Empty when none are found.
std::vector<uint64_t> Unwinder::State::SearchCallers() {
  std::vector<ReturnAddress> found;
  const uint64_t begin = (current->registers.rsp + 7) & ~uint64_t{7};
  for (uint64_t at = begin; at < begin + kSearchedBytes; at += sizeof(Dwarf_Word)) {
    Dwarf_Word word = 0;
    if (!ReadMemory(at, &word)) break;
    const Call call = CallBefore(word);
    if (call != Call::kNone) found.push_back({at, word, call});
  }
  Stack longest;
  // A tail call may hide who called, so calls to other functions come last.
  for (const bool to_others : {false, true}) {
    for (size_t i = 0; i < found.size(); ++i) {
      if ((found[i].call == Call::kOther) != to_others) continue;
      Stack stack = WalkFromCaller(found[i], i + 1 < found.size() ? found[i + 1].place : 0);
      if (stack.whole) return stack.addresses;
      if (stack.addresses.size() > longest.addresses.size()) longest = std::move(stack);
    }
  }
  return longest.addresses;
}

// The stack from a caller on; empty when it is short. The function at the program counter may have
// changed rbp. If the caller needs it, as frame pointer, it is the address below that of the
// caller's own return address, `next`.
Unwinder::State::Stack Unwinder::State::WalkFromCaller(const ReturnAddress& caller, uint64_t next) {
  user_regs_struct from = current->registers;
  from.rip = caller.address;
  from.rsp = caller.place + sizeof(Dwarf_Word);
  Stack longest;
  for (const uint64_t rbp :
       {static_cast<uint64_t>(from.rbp), static_cast<uint64_t>(next - sizeof(Dwarf_Word))}) {
    from.rbp = rbp;
    Stack stack = Walk(from);
    if (stack.known < kFewestFrames) continue;
    stack.addresses.resize(stack.known);
    --stack.addresses[0];  // into the call
    stack.whole = BeginsAThread(stack.addresses.back());
    if (stack.whole) return stack;
    if (stack.known > longest.known) longest = std::move(stack);
  }
  return longest;
}

// Whether threads begin in the function: the program's own, or the C library's, which has no name.
bool Unwinder::State::BeginsAThread(uint64_t address) {
  const StackFrame& frame = FramesAt(address).back();
  return frame.function == "_start" || frame.module.starts_with("libc.so");
}

// What the instruction before this address calls, if it is a call (Intel's manual, volume 2, CALL).
Unwinder::State::Call Unwinder::State::CallBefore(uint64_t address) const {
  Dwfl_Module* const module = dwfl_addrmodule(dwfl, address);
  uint8_t code[8] = {};  // before the address
  if (module == nullptr || !ReadProcess(address - sizeof code, code, sizeof code))
    return Call::kNone;
  if (code[3] == 0xe8) {  // by distance
    int32_t distance = 0;
    std::memcpy(&distance, &code[4], sizeof distance);
    return MayBeginHere(module, address + static_cast<int64_t>(distance)) ? Call::kPossible
                                                                          : Call::kOther;
  }
  // Through a register or memory: the operand takes 1, 2 or 3 bytes, or 5 or 6 with a distance.
  for (const size_t operand : {1, 2, 3, 5, 6}) {
    const size_t at = sizeof code - 1 - operand;
    if (code[at] == 0xff && (code[at + 1] >> 3 & 7) == 2) return Call::kPossible;
  }
  return Call::kNone;
}

// Whether the function at the program counter begins at this address of the module, or an entry of
// the module's linkage table, which may lead to any function.
bool Unwinder::State::MayBeginHere(Dwfl_Module* module, uint64_t address) const {
  uint8_t code[8] = {};
  if (!ReadProcess(address, code, sizeof code)) return false;
  static constexpr uint8_t kJump[] = {0xff, 0x25};  // to where a word in memory says
  if (std::search(std::begin(code), std::end(code), std::begin(kJump), std::end(kJump)) !=
      std::end(code)) {
    return true;
  }
  const uint64_t pc = current->registers.rip;
  if (dwfl_addrmodule(dwfl, pc) != module) return false;
  GElf_Off offset = 0;
  GElf_Sym symbol = {};
  const char* const name =
      dwfl_module_addrinfo(module, pc, &offset, &symbol, nullptr, nullptr, nullptr);
  return name == nullptr || pc - offset == address;
}

const std::vector<StackFrame>& Unwinder::State::FramesAt(uint64_t pc) {
  auto [it, is_new] = known.try_emplace(pc);
  if (is_new) it->second = Lookup(pc);
  return it->second;
}

std::vector<StackFrame> Unwinder::State::Lookup(uint64_t pc) {
  StackFrame frame = {.address = pc};
  Dwfl_Module* const module = dwfl_addrmodule(dwfl, pc);
  if (module == nullptr) return {frame};
  const char* const file =
      dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  if (file != nullptr) frame.module = std::filesystem::path(file).filename().string();
  GElf_Off offset = 0;
  GElf_Sym symbol = {};
  const char* const name =
      dwfl_module_addrinfo(module, pc, &offset, &symbol, nullptr, nullptr, nullptr);
  if (name != nullptr) frame.function = Demangle(name);
  if (Dwfl_Line* const line = dwfl_module_getsrc(module, pc); line != nullptr) {
    int number = 0;
    const char* const source = dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
    if (source != nullptr) frame.source = ShortSource(source, number);
  }
  std::vector<StackFrame> frames = {frame};
  AddInlined(module, pc, &frames);
  return frames;
}

// Inserts the functions that were inlined at this address before the function that contains them.
// The source line found so far belongs to the innermost function; each outer function gets the line
// of its call.
void Unwinder::State::AddInlined(Dwfl_Module* module, uint64_t pc,
                                 std::vector<StackFrame>* frames) {
  Dwarf_Addr bias = 0;
  Dwarf_Die* const unit = dwfl_module_addrdie(module, pc, &bias);
  if (unit == nullptr) return;
  // dwarf_getscopes() gives the innermost scope, but leads from an inlined function to the place
  // where it was written. dwarf_getscopes_die() of that scope leads outwards through the functions
  // that contain it.
  Dwarf_Die* written = nullptr;
  Dwarf_Die* scopes = nullptr;
  int count = 0;
  if (dwarf_getscopes(unit, pc - bias, &written) > 0) {
    count = dwarf_getscopes_die(&written[0], &scopes);
  }
  std::free(written);
  std::vector<StackFrame> inlined;
  StackFrame outer = frames->back();
  for (int i = 0; i < count; ++i) {
    if (dwarf_tag(&scopes[i]) == DW_TAG_subprogram) break;
    if (dwarf_tag(&scopes[i]) != DW_TAG_inlined_subroutine) continue;
    Dwarf_Attribute attribute;
    const char* name =
        dwarf_formstring(dwarf_attr_integrate(&scopes[i], DW_AT_linkage_name, &attribute));
    if (name == nullptr) name = dwarf_diename(&scopes[i]);
    inlined.push_back({.address = pc,
                       .inlined = true,
                       .function = name != nullptr ? Demangle(name) : "",
                       .source = outer.source,
                       .module = outer.module});
    Dwarf_Word line = 0;
    Dwarf_Word file = 0;
    Dwarf_Files* files = nullptr;
    size_t file_count = 0;
    if (dwarf_formudata(dwarf_attr(&scopes[i], DW_AT_call_line, &attribute), &line) == 0 &&
        dwarf_formudata(dwarf_attr(&scopes[i], DW_AT_call_file, &attribute), &file) == 0 &&
        dwarf_getsrcfiles(unit, &files, &file_count) == 0 && file < file_count) {
      outer.source =
          ShortSource(dwarf_filesrc(files, file, nullptr, nullptr), static_cast<int>(line));
    }
  }
  std::free(scopes);
  if (inlined.empty()) return;
  inlined.push_back(outer);
  *frames = std::move(inlined);
}

}  // namespace nsa::agent
