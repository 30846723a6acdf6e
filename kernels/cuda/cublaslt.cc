#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>

#include <array>

#include "absl/strings/str_join.h"
#include "common/status.h"

namespace nsa::cuda {
namespace {

template <class Function>
absl::Status Resolve(const CublasLt& library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library.handle, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(library.path, ": no function ", name,
                   " (cuBLASLt 12 or newer); install a newer CUDA toolkit"));
}

absl::StatusOr<CublasLt> Open() {
  const std::array<std::string, 4> folders = {"", "/usr/local/cuda/lib64/",
                                              "/usr/lib/x86_64-linux-gnu/",
                                              "/usr/local/cuda/targets/x86_64-linux/lib/"};
  const std::array<std::string, 3> names = {"libcublasLt.so.13", "libcublasLt.so.12",
                                            "libcublasLt.so"};
  CublasLt library;
  for (const std::string& name : names) {
    for (const std::string& folder : folders) {
      library.path = folder + name;
      library.handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library.handle != nullptr) return library;
    }
  }
  return absl::NotFoundError(
      absl::StrCat("cuBLASLt: not found (", absl::StrJoin(names, ", "),
                   " in the loader's path and /usr/local/cuda); install the CUDA toolkit's "
                   "libcublas or add its folder to LD_LIBRARY_PATH"));
}

absl::Status ResolveAll(CublasLt* l) {
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtCreate", &l->create));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtDestroy", &l->destroy));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtGetVersion", &l->version));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmul", &l->matmul));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmulDescCreate", &l->desc_create));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmulDescDestroy", &l->desc_destroy));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmulDescSetAttribute", &l->desc_set));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatrixLayoutCreate", &l->layout_create));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatrixLayoutDestroy", &l->layout_destroy));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmulPreferenceCreate", &l->preference_create));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmulPreferenceDestroy", &l->preference_destroy));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmulPreferenceSetAttribute", &l->preference_set));
  NSA_RETURN_IF_ERROR(Resolve(*l, "cublasLtMatmulAlgoCheck", &l->check));
  return Resolve(*l, "cublasLtMatmulAlgoGetHeuristic", &l->heuristic);
}

}  // namespace

absl::StatusOr<CublasLt> CublasLt::Load() {
  NSA_ASSIGN_OR_RETURN(CublasLt library, Open());
  NSA_RETURN_IF_ERROR(ResolveAll(&library));
  return library;
}

}  // namespace nsa::cuda
