package packager

import "github.com/bluenviron/mediacommon/v2/pkg/codecs/h264"

// mediacommon parses sequence parameter sets. The parsers of picture parameter sets and slice headers
// in this file stay, because mp4ff v0.56.0 refuses valid picture parameter sets (scaling lists without
// the 8x8 transform), takes more time and allocates memory for each slice header, loops over any
// stated count of references, and accepts a slice that ends in its header (figures in
// docs/decisions/libraries.md).

// avcPPS is the needed part of a picture parameter set (section 7.3.2.2).
type avcPPS struct {
	sps              *h264.SPS
	entropyCoding    bool
	bottomOrder      bool
	references       [2]uint32 // num_ref_idx_l0_default_active_minus1, l1
	weighted         bool
	bipredWeighted   uint32
	deblockControl   bool
	redundantPicture bool
}

// Types of NAL units.
const (
	avcSlice = 1
	avcIDR   = 5
	avcSetS  = 7
	avcAUD   = 9
)

// readAVCSPS parses a sequence parameter set (ISO/IEC 14496-10 section 7.3.2.1.1) from a NAL unit.
// mediacommon limits all counts in the set. mp4ff v0.56.0 allocates memory for any stated count of
// hypothetical decoder buffers.
func readAVCSPS(unit []byte) (*h264.SPS, error) {
	s := &h264.SPS{}
	if err := s.Unmarshal(unit); err != nil {
		if s.VUI == nil {
			return nil, broken("a sequence parameter set that cannot be read")
		}
		s.VUI = nil // the set is complete without its usability information
	}
	if s.ID > 31 || s.Log2MaxFrameNumMinus4 > 12 || s.Log2MaxPicOrderCntLsbMinus4 > 12 {
		return nil, broken("a sequence parameter set that cannot be read")
	}
	return s, nil
}

// avcReorder returns the most frames that precede a frame in decoding order and follow it in output
// order. The default is the size of the decoded picture buffer, or 0 if output order is decoding
// order (section E.2.1).
func avcReorder(s *h264.SPS) uint32 {
	if s.VUI != nil && s.VUI.BitstreamRestriction != nil {
		return min(16, s.VUI.BitstreamRestriction.MaxNumReorderFrames)
	}
	if s.PicOrderCntType == 2 || s.MaxNumRefFrames == 0 {
		return 0
	}
	switch s.ProfileIdc {
	case 44, 86, 100, 110, 122, 244:
		if s.ConstraintSet3Flag { // all pictures are intra pictures
			return 0
		}
	}
	width, height := uint64(s.PicWidthInMbsMinus1)+1, uint64(s.PicHeightInMapUnitsMinus1)+1
	if !s.FrameMbsOnlyFlag {
		height *= 2
	}
	return uint32(min(16, dpbMacroblocks(s.LevelIdc)/max(1, width*height)))
}

// dpbMacroblocks returns MaxDpbMbs of a level (table A-1).
func dpbMacroblocks(level uint8) uint64 {
	for _, l := range [...]struct {
		level uint8
		most  uint64
	}{
		{10, 396},
		{11, 900},
		{20, 2376},
		{21, 4752},
		{30, 8100},
		{31, 18000},
		{32, 20480},
		{41, 32768},
		{42, 34816},
		{50, 110400},
		{52, 184320},
	} {
		if level <= l.level {
			return l.most
		}
	}
	return 696320
}

// readAVCPPS parses a picture parameter set. The set must refer to one of sps.
func readAVCPPS(unit []byte, sps map[uint32]*h264.SPS) (id uint32, p *avcPPS, err error) {
	r := &bitReader{unit: unit, at: 1}
	id = r.ue()
	p = &avcPPS{sps: sps[r.ue()]}
	p.entropyCoding = r.flag()
	p.bottomOrder = r.flag()
	if r.ue() > 0 {
		return 0, nil, broken("slice groups")
	}
	p.references[0] = r.ue()
	p.references[1] = r.ue()
	p.weighted = r.flag()
	p.bipredWeighted = r.u(2)
	r.ue() // pic_init_qp_minus26
	r.ue() // pic_init_qs_minus26
	r.ue() // chroma_qp_index_offset
	p.deblockControl = r.flag()
	r.flag() // constrained_intra_pred_flag
	p.redundantPicture = r.flag()
	if r.ended || id > 255 || p.sps == nil || p.references[0] > 31 || p.references[1] > 31 {
		return 0, nil, broken("a picture parameter set that cannot be read")
	}
	return id, p, nil
}

// avcSliceHeader returns how many bytes of a slice's NAL unit belong, even in part, to its header
// (section 7.3.3).
func avcSliceHeader(unit []byte, sets map[uint32]*avcPPS) (int, error) {
	const ( // slice_type modulo 5
		sliceP = iota
		sliceB
		sliceI
		sliceSP
		sliceSI
	)
	r := bitReader{unit: unit, at: 1}
	idr, reference := unit[0]&31 == avcIDR, unit[0]>>5&3 != 0
	r.ue() // first_mb_in_slice
	kind := r.ue() % 5
	p := sets[r.ue()]
	if p == nil {
		return 0, broken("a slice of a picture parameter set that is not there")
	}
	s := p.sps
	chroma := s.ChromaFormatIdc != 0 && !s.SeparateColourPlaneFlag // slices have chroma samples
	if s.SeparateColourPlaneFlag {
		r.u(2) // colour_plane_id
	}
	r.u(uint(s.Log2MaxFrameNumMinus4) + 4)
	field := false
	if !s.FrameMbsOnlyFlag {
		if field = r.flag(); field {
			r.flag() // bottom_field_flag
		}
	}
	if idr {
		r.ue() // idr_pic_id
	}
	switch {
	case s.PicOrderCntType == 0:
		r.u(uint(s.Log2MaxPicOrderCntLsbMinus4) + 4)
		if p.bottomOrder && !field {
			r.ue()
		}
	case s.PicOrderCntType == 1 && !s.DeltaPicOrderAlwaysZeroFlag:
		r.ue()
		if p.bottomOrder && !field {
			r.ue()
		}
	}
	if p.redundantPicture {
		r.ue()
	}
	if kind == sliceB {
		r.flag() // direct_spatial_mv_pred_flag
	}
	lists := 0
	references := p.references
	switch kind {
	case sliceP, sliceSP:
		lists = 1
	case sliceB:
		lists = 2
	}
	if lists > 0 && r.flag() {
		for i := range lists {
			references[i] = r.ue()
		}
	}
	if references[0] > 31 || references[1] > 31 {
		return 0, broken("a slice with %d references", max(references[0], references[1]))
	}
	for range lists { // ref_pic_list_modification
		if !r.flag() {
			continue
		}
		for r.ue() != 3 && !r.ended {
			r.ue()
		}
	}
	if lists == 1 && p.weighted || lists == 2 && p.bipredWeighted == 1 { // pred_weight_table
		r.ue()
		if chroma {
			r.ue()
		}
		for i := range lists {
			for range references[i] + 1 {
				if r.flag() {
					r.ue()
					r.ue()
				}
				if chroma && r.flag() {
					for range 4 {
						r.ue()
					}
				}
			}
		}
	}
	if reference { // dec_ref_pic_marking
		if idr {
			r.u(2)
		} else if r.flag() {
			for !r.ended {
				operation := r.ue()
				if operation == 0 {
					break
				}
				if operation != 5 {
					r.ue()
				}
				if operation == 3 {
					r.ue()
				}
			}
		}
	}
	if p.entropyCoding && lists > 0 {
		r.ue() // cabac_init_idc
	}
	r.ue() // slice_qp_delta
	if kind == sliceSP || kind == sliceSI {
		if kind == sliceSP {
			r.flag()
		}
		r.ue()
	}
	if p.deblockControl && r.ue() != 1 {
		r.ue()
		r.ue()
	}
	if r.ended {
		return 0, broken("a slice that ends in its header")
	}
	return r.bytesRead(), nil
}
