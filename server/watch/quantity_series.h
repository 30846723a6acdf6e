// The Prometheus families of the quantities in common/record/quantities.h. A name there that is not
// in metrics_table.h does not compile.
#pragma once

#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "common/record/quantities.h"
#include "server/watch/families.h"

namespace nsa::server {

using AnyFamily = std::variant<GaugeFamily, CounterFamily, HistogramFamily>;

consteval AnyFamily FamilyNamed(const char* name) {
  for (const FamilySpec& spec : kFamilies) {
    if (std::string_view(spec.name) != name) continue;
    if (spec.kind == kGauge) return GaugeFamily(name);
    if (spec.kind == kCounter) return CounterFamily(name);
    return HistogramFamily(name);
  }
  throw "no such metric in kFamilies";
}

consteval auto FamiliesOfQuantities() {
  std::array<std::optional<AnyFamily>, std::size(record::kQuantities)> families;
  for (size_t i = 0; i < families.size(); ++i) {
    const char* const name = record::kQuantities[i].series.family;
    if (name != nullptr) families[i].emplace(FamilyNamed(name));
  }
  return families;
}

// Of each row of record::kQuantities; nothing for one without a series.
inline constexpr auto kFamilyOf = FamiliesOfQuantities();

// Calls with(quantity, family) for each quantity of a kind that has a series.
template <typename With>
void ForEachSeries(record::Of of, With with) {
  for (size_t i = 0; i < kFamilyOf.size(); ++i) {
    const record::Quantity& quantity = record::kQuantities[i];
    if (quantity.of() == of && kFamilyOf[i].has_value()) with(quantity, *kFamilyOf[i]);
  }
}

// Whether each rank has a series of its own; the others show rank 0.
inline bool IsOfRank(const AnyFamily& family) {
  return std::visit(
      [](const auto& one) {
        return std::string_view(one.spec().labels).find("rank") != std::string_view::npos;
      },
      family);
}

// Shows values of a quantity, which are in order: a gauge has the last one, a counter grows by all
// of them, and a histogram counts each.
void Show(const record::Quantity& quantity, const AnyFamily& family,
          const std::vector<double>& values, Labels labels, SeriesGroup* series);

}  // namespace nsa::server
