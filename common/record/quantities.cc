#include "common/record/quantities.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace nsa::record {

bool Has(Layer layer, Part part) {
  switch (part) {
    case Part::kGate:
      return layer.has_gate();
    case Part::kSelection:
      return layer.has_selection();
    case Part::kAudit:
      return layer.has_audit();
    case Part::kWhole:
      break;
  }
  return true;
}

std::string SourceName(v1::DataSource source) {
  if (source == v1::DATA_SOURCE_UNSPECIFIED) return "mix";
  constexpr char kPrefix[] = "DATA_SOURCE_";
  const std::string& name = v1::DataSource_Name(source);
  if (name.empty()) return absl::StrCat("unknown(", static_cast<int>(source), ")");
  return absl::AsciiStrToLower(name.substr(sizeof(kPrefix) - 1));
}

Value ValueOf(const Quantity& quantity, Layer layer) {
  return Has(layer, quantity.part) ? quantity.layer(layer) : std::nullopt;
}

Value MeasuredValueOf(const Quantity& quantity, Layer layer) {
  if (quantity.counts != nullptr && !quantity.counts(layer)) return std::nullopt;
  return ValueOf(quantity, layer);
}

void Kept::Add(double value) {
  ++count_;
  sum_ += value;
  least_ = std::fmin(least_, value);
  greatest_ = std::fmax(greatest_, value);
}

Value Kept::Result() const {
  if (count_ == 0) return std::nullopt;
  if (keep_ == Keep::kMean) return sum_ / static_cast<double>(count_);
  return keep_ == Keep::kLeast ? least_ : greatest_;
}

}  // namespace nsa::record
