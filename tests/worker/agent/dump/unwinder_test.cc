// The stack of a process that is in a function written in assembly.
#include "worker/agent/dump/unwinder.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "worker/agent/dump/thread_snapshot.h"

// Like OpenBLAS's matrix products: nsa_test_spin_a says that its frame is empty, which is wrong
// after its first instructions, so what is taken for its return address is *first. nsa_test_spin_b
// has no call frame information at all. Both end with the process.
asm(R"(
.pushsection .text
nsa_test_spin_a:
.cfi_startproc
  pushq %rbp
  subq $200, %rsp
  movq %rdi, (%rsp)
  xorl %ebp, %ebp
1: pause
  jmp 1b
.cfi_endproc
.size nsa_test_spin_a, .-nsa_test_spin_a
.type nsa_test_spin_a, @function
nsa_test_spin_b:
  pushq %rbp
  subq $3000, %rsp
  xorl %ebp, %ebp
1: pause
  jmp 1b
.size nsa_test_spin_b, .-nsa_test_spin_b
.type nsa_test_spin_b, @function
.popsection
)");
extern "C" void nsa_test_spin_a(uint64_t first);
extern "C" void nsa_test_spin_b(uint64_t first);

namespace nsa::agent {

// Clears what earlier calls have left on the stack.
[[gnu::noinline, gnu::no_sanitize_address]] void ClearStack() {
  volatile char left[16384];
  for (volatile char& byte : left) byte = 0;
}

// With names that the dump must show, so not in an anonymous namespace.
[[gnu::noinline]] void CallerOfSpin(void (*spin)(uint64_t), uint64_t first) {
  spin(first);
  asm volatile("");  // no tail call
}
[[gnu::noinline]] void CallerOfCaller(void (*spin)(uint64_t), uint64_t first) {
  CallerOfSpin(spin, first);
  asm volatile("");
}

namespace {

using ::testing::HasSubstr;

// The frames of a child process that is in `spin`, which has left `rbp` in that register.
std::vector<StackFrame> FramesIn(void (*spin)(uint64_t), uint64_t first, uint64_t rbp = 0) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ClearStack();
    CallerOfCaller(spin, first);
    _exit(1);
  }
  const absl::Cleanup end = [child] {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  };
  const auto begin = reinterpret_cast<uint64_t>(spin);
  ThreadSnapshot snapshot;
  do {  // until it is in the loop, which ends 32 bytes after the function's begin at most
    snapshot = TakeSnapshot(child, child, absl::Seconds(5));
    EXPECT_OK(snapshot.status);
    if (!snapshot.status.ok()) return {};
  } while (snapshot.registers.rip < begin + 8 || snapshot.registers.rip > begin + 32 ||
           snapshot.registers.rbp != 0);
  snapshot.registers.rbp = rbp;
  auto unwinder = Unwinder::Create(child);
  EXPECT_OK(unwinder);
  return unwinder.ok() ? (*unwinder)->Unwind(snapshot) : std::vector<StackFrame>();
}

void ExpectItsCallers(const std::vector<StackFrame>& frames, const std::string& function) {
  ASSERT_GE(frames.size(), 5U);
  EXPECT_EQ(frames[0].function, function);
  EXPECT_THAT(frames[1].function, HasSubstr("CallerOfSpin"));
  EXPECT_THAT(frames[2].function, HasSubstr("CallerOfCaller"));
  EXPECT_THAT(frames[3].function, HasSubstr("FramesIn"));
  EXPECT_FALSE(frames[0].searched);
  EXPECT_TRUE(frames[1].searched);
  EXPECT_FALSE(frames[2].searched);
}

TEST(Unwinder, SearchesForTheCallersOfAFunctionWithWrongInformation) {
  ExpectItsCallers(FramesIn(nsa_test_spin_a, 0), "nsa_test_spin_a");
  ExpectItsCallers(FramesIn(nsa_test_spin_a, 0x1234), "nsa_test_spin_a");
}

TEST(Unwinder, SearchesForTheCallersOfAFunctionWithoutInformation) {
  ExpectItsCallers(FramesIn(nsa_test_spin_b, 0), "nsa_test_spin_b");
}

TEST(Unwinder, ReadsNothingAtTheEndOfTheAddresses) {
  ExpectItsCallers(FramesIn(nsa_test_spin_b, 0, ~uint64_t{7}), "nsa_test_spin_b");
}

}  // namespace
}  // namespace nsa::agent
