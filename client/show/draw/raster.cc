#include "client/show/draw/raster.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace nsa::client {
namespace {

std::array<uint8_t, 3> ColourOf(std::string_view text) {
  std::array<uint8_t, 3> colour{};
  for (size_t i = 0; i < 3; ++i) {
    std::from_chars(text.data() + 1 + 2 * i, text.data() + 3 + 2 * i, colour[i], 16);
  }
  return colour;
}

void AppendNumber(uint32_t number, std::string* bytes) {
  for (int shift = 24; shift >= 0; shift -= 8) *bytes += static_cast<char>(number >> shift);
}

void AppendChunk(const std::string& kind, const std::string& body, std::string* file) {
  AppendNumber(static_cast<uint32_t>(body.size()), file);
  const std::string checked = kind + body;
  *file += checked;
  AppendNumber(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(checked.data()),
                                           static_cast<uInt>(checked.size()))),
               file);
}

std::string Compressed(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string packed(size, '\0');
  // It fits, so only a lack of memory could make it fail.
  if (compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
                reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 9) != Z_OK) {
    std::abort();
  }
  packed.resize(size);
  return packed;
}

}  // namespace

Raster::Raster(int width, int height, int scale)
    : columns_(width * scale),
      rows_(height * scale),
      scale_(scale),
      pixels_(size_t{3} * columns_ * rows_, 255),
      cover_(size_t{1} * columns_ * rows_),
      left_(columns_),
      right_(-1),
      top_(rows_),
      bottom_(-1) {}

void Raster::Cover(int column, int row, double share) {
  if (share <= 0 || column < 0 || column >= columns_ || row < 0 || row >= rows_) return;
  float& cover = cover_[size_t{1} * row * columns_ + column];
  cover = std::max(cover, static_cast<float>(std::min(share, 1.0)));
  left_ = std::min(left_, column);
  right_ = std::max(right_, column);
  top_ = std::min(top_, row);
  bottom_ = std::max(bottom_, row);
}

// Lets what was covered take the colour, and begins anew.
void Raster::Ink(std::string_view colour, double share) {
  const auto ink = ColourOf(colour);
  for (int row = top_; row <= bottom_; ++row) {
    for (int column = left_; column <= right_; ++column) {
      const size_t place = size_t{1} * row * columns_ + column;
      const double part = share * cover_[place];
      cover_[place] = 0;
      if (part <= 0) continue;
      for (size_t i = 0; i < 3; ++i) {
        uint8_t& value = pixels_[3 * place + i];
        value = static_cast<uint8_t>(std::lround(value + part * (ink[i] - value)));
      }
    }
  }
  left_ = columns_;
  right_ = -1;
  top_ = rows_;
  bottom_ = -1;
}

// Covers each point by its distance from the line, in points.
void Raster::Segment(Point from, Point to, double radius) {
  const double dx = to.x - from.x;
  const double dy = to.y - from.y;
  const double length = dx * dx + dy * dy;
  const double reach = radius + 1;
  const auto clamped = [](double value, int most) {
    return static_cast<int>(std::clamp(value, -1.0, static_cast<double>(most)));
  };
  for (int row = clamped(std::min(from.y, to.y) - reach, rows_);
       row <= clamped(std::max(from.y, to.y) + reach, rows_); ++row) {
    for (int column = clamped(std::min(from.x, to.x) - reach, columns_);
         column <= clamped(std::max(from.x, to.x) + reach, columns_); ++column) {
      const double px = column + 0.5 - from.x;
      const double py = row + 0.5 - from.y;
      const double along = length > 0 ? std::clamp((px * dx + py * dy) / length, 0.0, 1.0) : 0.0;
      Cover(column, row, radius + 0.5 - std::hypot(px - along * dx, py - along * dy));
    }
  }
}

void Raster::Stroke(const std::vector<Point>& points, double width, std::string_view colour,
                    double share) {
  const double radius = width * scale_ / 2;
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& from = points[i > 0 ? i - 1 : 0];
    Segment({from.x * scale_, from.y * scale_}, {points[i].x * scale_, points[i].y * scale_},
            radius);
  }
  Ink(colour, share);
}

void Raster::Column(int column, double top, double bottom) {
  const int last = static_cast<int>(std::min(std::ceil(bottom), rows_ + 1.0));
  for (int row = static_cast<int>(std::max(std::floor(top), -1.0)); row < last; ++row) {
    Cover(column, row, std::min(bottom, row + 1.0) - std::max<double>(top, row));
  }
}

void Raster::Fill(const std::vector<Point>& upper, const std::vector<Point>& lower,
                  std::string_view colour, double share) {
  for (size_t i = 1; i < upper.size(); ++i) {
    const double from = upper[i - 1].x * scale_;
    const double to = upper[i].x * scale_;
    const int last = static_cast<int>(std::min(std::ceil(to), columns_ + 1.0));
    for (int column = static_cast<int>(std::max(std::floor(from), -1.0)); column < last; ++column) {
      const double at = to > from ? std::clamp((column + 0.5 - from) / (to - from), 0.0, 1.0) : 0.5;
      const auto between = [&](const std::vector<Point>& line) {
        return (line[i - 1].y + at * (line[i].y - line[i - 1].y)) * scale_;
      };
      Column(column, between(upper), between(lower));
    }
  }
  Ink(colour, share);
}

void Raster::FillAll(std::string_view colour) {
  const auto ink = ColourOf(colour);
  for (size_t i = 0; i < pixels_.size(); ++i) pixels_[i] = ink[i % 3];
}

std::array<uint8_t, 3> Raster::At(int column, int row) const {
  const uint8_t* const pixel = &pixels_[3 * (size_t{1} * row * columns_ + column)];
  return {pixel[0], pixel[1], pixel[2]};
}

std::string Raster::Png() const {
  std::string header;
  AppendNumber(static_cast<uint32_t>(columns_), &header);
  AppendNumber(static_cast<uint32_t>(rows_), &header);
  header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, colours, nothing special
  // Each row is what it adds to the one above (filter 2), which packs well.
  std::string rows;
  const size_t wide = size_t{3} * columns_;
  for (int row = 0; row < rows_; ++row) {
    rows += '\x02';
    const uint8_t* const now = &pixels_[row * wide];
    for (size_t i = 0; i < wide; ++i) {
      rows += static_cast<char>(row == 0 ? now[i] : now[i] - now[i - wide]);
    }
  }
  std::string file("\x89PNG\r\n\x1A\n", 8);
  AppendChunk("IHDR", header, &file);
  AppendChunk("IDAT", Compressed(rows), &file);
  AppendChunk("IEND", "", &file);
  return file;
}

}  // namespace nsa::client
