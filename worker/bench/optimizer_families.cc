// The families of the optimizer. They do not depend on the sequence.
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/global_norm.h"
#include "kernels/optimizer/muon.h"
#include "worker/bench/families.h"

namespace nsa::bench {
namespace {

// All parameters when timed, 2²⁰ elements for the check (batch 1).
void AddVectors(const ModelWidths& w, std::vector<Family>* out) {
  const auto size = [w](const NsaShape& shape) {
    return shape.batch == 1 ? int64_t{1} << 20 : w.parameters;
  };
  out->push_back(
      {"global_norm", 0, 4.0 * w.parameters, [size](const NsaShape& shape, Data* data) -> Call {
         const GlobalNormArgs args{data->RandomF32(size(shape), 1), data->Raw(1, DType::kF32)};
         return {[=] { return GlobalNorm(data->exec(), args); }, {{"norm", args.norm}}};
       }});
  out->push_back(
      {"adamw", 0, 30.0 * w.parameters, [size](const NsaShape& shape, Data* data) -> Call {
         const int64_t n = size(shape);
         auto segments = std::make_shared<std::vector<AdamWSegment>>();
         const int64_t half = n / 8 * 4;  // as in a model, a run begins at a multiple of four
         *segments = {{half, true}, {n - half, false}};
         AdamWArgs args{.parameters = data->RandomF32(n, 1),
                        .gradients = data->RandomF32(n, 2),
                        .m = data->Zeros(n, DType::kF32),
                        .v = data->Zeros(n, DType::kF32),
                        .segments = *segments,
                        .lr = 1e-3f,
                        .weight_decay = 0.1f};
         if (data->exec().backend == Backend::kCuda) {
           args.half = data->Out(n);
         }
         return {[args, segments, data] { return AdamW(data->exec(), args); }, {}};
       }});
}

// Muon on the matrices of twelve MLPs when timed, on two small ones for the check.
void AddMuon(const ModelWidths& w, std::vector<Family>* out) {
  constexpr double kIterations = 5, kMatrices = 24;
  const double dim = static_cast<double>(w.dim), hidden = 4 * dim;
  out->push_back({"muon", kIterations * kMatrices * (4 * dim * dim * hidden + 2 * dim * dim * dim),
                  0, [w](const NsaShape& shape, Data* data) -> Call {
                    const bool check = shape.batch == 1;
                    const int64_t height = check ? 64 : 4 * w.dim, width = check ? 32 : w.dim;
                    const int64_t count = check ? 2 : 24, n = count * height * width;
                    auto matrices = std::make_shared<std::vector<MuonMatrix>>();
                    for (int64_t i = 0; i < count; ++i) {
                      const int64_t offset = i * height * width;
                      matrices->push_back(i % 2 == 0 ? MuonMatrix{offset, height, width}
                                                     : MuonMatrix{offset, width, height});
                    }
                    MuonArgs args{.parameters = data->RandomF32(n, 1),
                                  .gradients = data->RandomF32(n, 2),
                                  .m = data->Zeros(n, DType::kF32),
                                  .v = data->Zeros(n, DType::kF32),
                                  .matrices = *matrices,
                                  .lr = 1e-3f,
                                  .weight_decay = 0.1f};
                    if (data->exec().backend == Backend::kCuda) args.half = data->Out(n);
                    return {[args, matrices, data] { return Muon(data->exec(), args); }, {}};
                  }});
}

}  // namespace

void AddOptimizers(const ModelWidths& widths, std::vector<Family>* out) {
  AddVectors(widths, out);
  AddMuon(widths, out);
}

}  // namespace nsa::bench
