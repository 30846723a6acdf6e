// Charts as pictures of points: the font, the drawing, the file.
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "client/show/draw/png_chart.h"
#include "client/show/draw/raster.h"
#include "client/show/draw/stroke_font.h"
#include "gmock/gmock.h"

namespace nsa::client {
namespace {

using Pixel = std::array<uint8_t, 3>;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr Pixel kWhite = {255, 255, 255};

uint32_t NumberAt(const std::string& bytes, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(bytes[at + i]);
  return number;
}

struct Decoded {
  uint32_t columns = 0, rows = 0;
  std::vector<Pixel> pixels;
};

// Reads a file of Raster::Png() by the rules of the format: chunks with their check sums, filters.
Decoded Decode(const std::string& file) {
  Decoded picture;
  EXPECT_EQ(file.substr(0, 8), std::string("\x89PNG\r\n\x1A\n"));
  std::string packed;
  std::vector<std::string> kinds;
  for (size_t at = 8; at + 12 <= file.size();) {
    const uint32_t size = NumberAt(file, at);
    const std::string chunk = file.substr(at + 4, 4 + size);
    kinds.push_back(chunk.substr(0, 4));
    EXPECT_EQ(NumberAt(file, at + 8 + size), crc32(0, reinterpret_cast<const Bytef*>(chunk.data()),
                                                   static_cast<uInt>(chunk.size())));
    if (kinds.back() == "IHDR") {
      picture.columns = NumberAt(chunk, 4);
      picture.rows = NumberAt(chunk, 8);
      EXPECT_EQ(chunk.substr(12), std::string("\x08\x02\0\0\0", 5));
    }
    if (kinds.back() == "IDAT") packed += chunk.substr(4);
    at += 12 + size;
  }
  EXPECT_THAT(kinds, ElementsAre("IHDR", "IDAT", "IEND"));
  const size_t wide = size_t{3} * picture.columns;
  std::string rows((wide + 1) * picture.rows, '\0');
  uLongf size = rows.size();
  EXPECT_EQ(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size,
                       reinterpret_cast<const Bytef*>(packed.data()), packed.size()),
            Z_OK);
  EXPECT_EQ(size, rows.size());
  std::vector<uint8_t> above(wide);
  for (size_t row = 0; row < picture.rows; ++row) {
    EXPECT_EQ(rows[row * (wide + 1)], 2) << "filter of row " << row;
    for (size_t i = 0; i < wide; ++i) {
      above[i] = static_cast<uint8_t>(above[i] + rows[row * (wide + 1) + 1 + i]);
    }
    for (size_t i = 0; i < wide; i += 3) {
      picture.pixels.push_back({above[i], above[i + 1], above[i + 2]});
    }
  }
  return picture;
}

TEST(Raster, TheFileHasThePictureThatWasDrawn) {
  Raster raster(20, 10, 2);
  raster.Stroke({{2, 2}, {18, 8}}, 1.5, "#2f5fd0");
  raster.Fill({{0, 1}, {10, 1}}, {{0, 3}, {10, 5}}, "#d1660a", 0.5);
  const Decoded picture = Decode(raster.Png());
  ASSERT_EQ(picture.columns, 40u);
  ASSERT_EQ(picture.rows, 20u);
  std::set<Pixel> colours;
  for (int row = 0; row < 20; ++row) {
    for (int column = 0; column < 40; ++column) {
      EXPECT_EQ(picture.pixels[row * 40 + column], raster.At(column, row));
      colours.insert(raster.At(column, row));
    }
  }
  EXPECT_GT(colours.size(), 10u) << "smooth edges";
}

TEST(Raster, ALineIsFullInItsMiddleAndHalfAtItsEdge) {
  Raster raster(10, 10, 1);
  raster.Stroke({{-5, 4.5}, {50, 4.5}}, 2, "#000000");
  for (const int column : {0, 5, 9}) {
    EXPECT_EQ(raster.At(column, 4), (Pixel{0, 0, 0}));
    EXPECT_EQ(raster.At(column, 3)[0], 128) << "half of it";
    EXPECT_EQ(raster.At(column, 2), kWhite);
  }
}

TEST(Raster, CrossingItselfMakesALineNoDarker) {
  Raster raster(10, 10, 1);
  raster.Stroke({{0, 5.5}, {10, 5.5}, {0, 5.5}}, 1, "#000000", 0.5);
  EXPECT_EQ(raster.At(5, 5)[0], 128);
}

TEST(Raster, WhatLiesOutsideIsLeftOut) {
  Raster raster(4, 4, 1);
  raster.Stroke({{-1e9, -1e9}, {-1e8, -2e8}}, 2, "#000000");
  raster.Fill({{-1e9, -1e9}, {1e3, -1e9}}, {{-1e9, -5}, {1e3, -5}}, "#000000", 1);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(raster.At(i % 4, i / 4), kWhite);
}

TEST(StrokeFont, EveryCharacterIsDrawnAndNoTwoAreAlike) {
  std::set<std::vector<std::pair<double, double>>> seen;
  for (char c = '!'; c <= '~'; ++c) {
    const StrokeText drawn = StrokesOf(std::string(1, c));
    std::vector<std::pair<double, double>> points;
    for (const auto& stroke : drawn.strokes) {
      ASSERT_FALSE(stroke.empty()) << c;
      for (const Point& point : stroke) {
        EXPECT_TRUE(point.x >= 0 && point.x <= 6 && point.y >= -7 && point.y <= 2) << c;
        points.emplace_back(point.x, point.y);
      }
    }
    EXPECT_TRUE(seen.insert(points).second) << c << " looks like another one";
  }
}

TEST(StrokeFont, TextsAreSpelledInAscii) {
  EXPECT_THAT(StrokesOf("").strokes, SizeIs(0));
  EXPECT_EQ(StrokesOf("5 µs").strokes.size(), StrokesOf("5 us").strokes.size());
  EXPECT_EQ(StrokesOf("é").width, StrokesOf("?").width) << "one sign for the two bytes";
  EXPECT_EQ(StrokesOf("111").width, StrokesOf("888").width) << "numbers stay in columns";
  EXPECT_GT(StrokesOf("a b").width, StrokesOf("ab").width);
}

TEST(PngFile, HasTheCurvesInTheirColours) {
  Chart chart{.title = "loss", .note = "nats a token", .x_name = "step"};
  chart.curves.resize(2);
  chart.curves[0].name = "training";
  chart.curves[1].name = "validation";
  chart.curves[1].dots = true;
  chart.curves[1].colour = 1;
  for (int i = 0; i < 5000; ++i) {
    chart.curves[0].x.push_back(i);
    chart.curves[0].y.push_back(std::exp(-i / 1000.0));
    if (i % 500 == 0) chart.curves[1].x.push_back(i);
    if (i % 500 == 0) chart.curves[1].y.push_back(0.5);
  }
  const Decoded picture = Decode(PngFile(chart, 400, 200));
  EXPECT_EQ(picture.columns, 800u);
  EXPECT_EQ(picture.rows, 400u);
  const auto count = [&](Pixel colour) { return std::ranges::count(picture.pixels, colour); };
  EXPECT_GT(count({0x2f, 0x5f, 0xd0}), 500) << "the curve";
  EXPECT_GT(count({0xd1, 0x66, 0x0a}), 300) << "the dots";
  EXPECT_GT(count(kWhite), 200'000);
  chart.curves[1].y.assign(chart.curves[1].y.size(), std::nan(""));
  chart.curves[0].y.assign(chart.curves[0].y.size(), std::nan(""));
  const Decoded empty = Decode(PngFile(chart, 400, 200));
  EXPECT_LT(std::ranges::count(empty.pixels, Pixel{0x2f, 0x5f, 0xd0}), 200) << "the legend alone";
}

}  // namespace
}  // namespace nsa::client
