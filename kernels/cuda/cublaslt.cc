#include "kernels/cuda/cublaslt.h"

#include "common/base/shared_library.h"
#include "common/base/status.h"

namespace nsa::cuda {
namespace {

absl::Status ResolveAll(const SharedLibrary& shared, CublasLt* l) {
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtCreate", &l->create));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtDestroy", &l->destroy));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtGetVersion", &l->version));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmul", &l->matmul));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmulDescCreate", &l->desc_create));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmulDescDestroy", &l->desc_destroy));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmulDescSetAttribute", &l->desc_set));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatrixLayoutCreate", &l->layout_create));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatrixLayoutDestroy", &l->layout_destroy));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatrixLayoutSetAttribute", &l->layout_set));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmulPreferenceCreate", &l->preference_create));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmulPreferenceDestroy", &l->preference_destroy));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmulPreferenceSetAttribute", &l->preference_set));
  NSA_RETURN_IF_ERROR(shared.Resolve("cublasLtMatmulAlgoCheck", &l->check));
  return shared.Resolve("cublasLtMatmulAlgoGetHeuristic", &l->heuristic);
}

}  // namespace

absl::StatusOr<CublasLt> CublasLt::Load() {
  NSA_ASSIGN_OR_RETURN(
      const SharedLibrary shared,
      OpenSharedLibrary({.what = "cuBLASLt",
                         .names = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"},
                         .pip_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"},
                         .help = "install the CUDA toolkit's libcublas (or pip install "
                                 "nvidia-cublas) or add its folder to LD_LIBRARY_PATH"}));
  CublasLt library;
  library.path = shared.path;
  NSA_RETURN_IF_ERROR(ResolveAll(shared, &library));
  return library;
}

}  // namespace nsa::cuda
