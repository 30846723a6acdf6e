// Calls with correct arguments; a test makes one wrong at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {

// Zeroed memory that is large enough for any tensor in this file.
class Memory {
 public:
  Tensor Take(int64_t size, DType type = DType::kF32) {
    blocks_.emplace_back(std::max<int64_t>(1, size * SizeOf(type) / 8 + 2), 0);
    return {blocks_.back().data(), size, type};
  }

 private:
  std::vector<std::vector<int64_t>> blocks_;
};

// A call with correct arguments, and its tensors by name. The tests then make one of them wrong.
template <class Args>
struct Call {
  Args args;
  std::vector<std::pair<const char*, ConstTensor*>> inputs;
  std::vector<std::pair<const char*, Tensor*>> outputs;
  std::function<absl::Status(const Exec&, const Args&)> run;
};

template <class T>
std::vector<T> Spoilt(const T& tensor) {
  T shorter = tensor, longer = tensor, other_type = tensor, no_memory = tensor;
  shorter.size -= 1;
  longer.size += 1;
  other_type.dtype = tensor.dtype == DType::kU8 ? DType::kF32 : DType::kU8;
  no_memory.data = nullptr;
  return {shorter, longer, other_type, no_memory};
}

template <class Args>
void ExpectEveryTensorIsChecked(Call<Args>& call) {
  ASSERT_OK(call.run({}, call.args));
  const auto expect = [&](const char* name, auto* tensor) {
    const auto right = *tensor;
    for (const auto& wrong : Spoilt(right)) {
      *tensor = wrong;
      EXPECT_THAT(call.run({}, call.args),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           ::testing::StartsWith(std::string(name) + ": ")))
          << name << " size " << wrong.size << " of " << right.size;
    }
    *tensor = right;
  };
  for (auto& [name, tensor] : call.inputs) expect(name, tensor);
  for (auto& [name, tensor] : call.outputs) expect(name, tensor);
  // Refused because the arguments are fp32 or the build has no CUDA; both messages name CUDA.
  EXPECT_THAT(call.run({.backend = Backend::kCuda}, call.args).message(),
              ::testing::HasSubstr("CUDA"));
  call.args.shape.l_sel = 0;
  EXPECT_THAT(call.run({}, call.args),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("l_sel")));
}

inline const NsaShape kShape{1, 12, 4, 2, 16, 32, 4, 2, 4, 3, 4};

inline int64_t Lse(const NsaShape& s) { return int64_t{1} * s.batch * s.seq_len * s.n_heads; }

}  // namespace nsa::testing
