#include "common/job/legacy_keys.h"

#include "absl/strings/str_format.h"

namespace nsa {
namespace {

constexpr LegacyRule kRules[] = {
    {"runtime.use_flash", "",
     "has no effect: there is one attention implementation (the Python trainer ignored it too)"},
    {"runtime.use_triton_sel", "",
     "has no effect: there is one selection kernel (the Python trainer ignored it too)"},
    {"runtime.sel_triton_min_L", "",
     "has no effect: there is one selection kernel for every length (the Python trainer ignored "
     "it too)"},
    {"runtime.fa2_*", "",
     "has no effect: FlashAttention-2 is not used, the kernels here are exact at every length"},
    {"runtime.compile_cmp_win", "",
     "has no effect: kernels are compiled ahead of time (the Python trainer ignored it too)"},
    {"train.max_grad_norm", "grad_clip",
     "is read as train.grad_clip (the Python trainer ignored it and clipped at grad_clip)"},
};

SourcePlace PlaceOf(const LoadResult& result, std::string_view field) {
  const auto place = result.places.find(field);
  return place == result.places.end() ? SourcePlace{} : place->second;
}

}  // namespace

const LegacyRule* FindLegacyRule(std::string_view field) {
  for (const LegacyRule& rule : kRules) {
    const bool prefix = rule.field.ends_with('*');
    const std::string_view stem = prefix ? rule.field.substr(0, rule.field.size() - 1) : rule.field;
    if (prefix ? field.starts_with(stem) : field == stem) return &rule;
  }
  return nullptr;
}

void CompleteLegacyFile(LoadResult* result, v1::JobSpec* spec) {
  if (result->legacy.empty()) return;
  const auto note = [&](const std::string& field, std::string why) {
    result->legacy.push_back({field, PlaceOf(*result, field), std::move(why)});
  };
  if (!spec->model().has_n_layers()) {
    spec->mutable_model()->set_n_layers(1);
    note("model.n_layers", "is not set: 1, as in the Python system (the default here is 12)");
  }
  if (!spec->train().has_weight_decay()) {
    spec->mutable_train()->set_weight_decay(0);
    note("train.weight_decay", "is not set: 0, as in the Python system (the default here is 0.1)");
  }
  if (spec->train().has_steps()) {
    const int64_t accumulate =
        spec->train().has_accumulate_grad_batches() ? spec->train().accumulate_grad_batches() : 1;
    std::string why = "counts optimizer steps; the Python system counted micro-steps";
    if (accumulate > 1) {
      why += absl::StrFormat(
          ". %d steps train on %d times as many tokens; write %d for the same number of tokens",
          spec->train().steps(), accumulate, spec->train().steps() / accumulate);
    }
    note("train.steps", std::move(why));
  }
}

}  // namespace nsa
