#include "worker/bench/dense.h"

#include "absl/strings/str_cat.h"

namespace nsa::bench {

v1::JobSpec Dense(v1::JobSpec spec, int32_t tokens) {
  spec.set_name(absl::StrCat(spec.name(), ", dense attention"));
  spec.mutable_nsa()->clear_layers();
  spec.mutable_nsa()->clear_branches();
  spec.mutable_nsa()->add_branches(v1::BRANCH_WIN);
  spec.mutable_nsa()->set_w(tokens);
  return spec;
}

}  // namespace nsa::bench
