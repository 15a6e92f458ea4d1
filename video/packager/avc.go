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

// slice_type modulo 5.
const (
	sliceP = iota
	sliceB
	sliceI
	sliceSP
	sliceSI
)

// sliceHeader reads the header of a slice (section 7.3.3).
type sliceHeader struct {
	bitReader
	sps            *h264.SPS
	pps            *avcPPS
	kind           uint32
	idr, reference bool
	lists          int       // number of lists of reference pictures
	references     [2]uint32 // num_ref_idx_l0_active_minus1, l1
}

// avcSliceHeader returns how many bytes of a slice's NAL unit belong, even in part, to its header.
func avcSliceHeader(unit []byte, sets map[uint32]*avcPPS) (int, error) {
	r := sliceHeader{bitReader: bitReader{unit: unit, at: 1}, idr: unit[0]&31 == avcIDR, reference: unit[0]>>5&3 != 0}
	r.ue() // first_mb_in_slice
	r.kind = r.ue() % 5
	p := sets[r.ue()]
	if p == nil {
		return 0, broken("a slice of a picture parameter set that is not there")
	}
	r.pps, r.sps = p, p.sps
	r.order()
	if p.redundantPicture {
		r.ue()
	}
	if err := r.referenceLists(); err != nil {
		return 0, err
	}
	r.weights()
	r.marking()
	if p.entropyCoding && r.lists > 0 {
		r.ue() // cabac_init_idc
	}
	r.quantisers()
	if p.deblockControl && r.ue() != 1 {
		r.ue()
		r.ue()
	}
	if r.ended {
		return 0, broken("a slice that ends in its header")
	}
	return r.bytesRead(), nil
}

// order reads the picture's number and place in output order.
func (r *sliceHeader) order() {
	s := r.sps
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
	if r.idr {
		r.ue() // idr_pic_id
	}
	switch {
	case s.PicOrderCntType == 0:
		r.u(uint(s.Log2MaxPicOrderCntLsbMinus4) + 4)
	case s.PicOrderCntType == 1 && !s.DeltaPicOrderAlwaysZeroFlag:
		r.ue()
	default:
		return
	}
	if r.pps.bottomOrder && !field {
		r.ue()
	}
}

func (r *sliceHeader) referenceLists() error {
	switch r.kind {
	case sliceP, sliceSP:
		r.lists = 1
	case sliceB:
		r.flag() // direct_spatial_mv_pred_flag
		r.lists = 2
	}
	r.references = r.pps.references
	if r.lists > 0 && r.flag() {
		for i := range r.lists {
			r.references[i] = r.ue()
		}
	}
	if r.references[0] > 31 || r.references[1] > 31 {
		return broken("a slice with %d references", max(r.references[0], r.references[1]))
	}
	for range r.lists {
		r.modification()
	}
	return nil
}

// modification reads ref_pic_list_modification of a list.
func (r *sliceHeader) modification() {
	if !r.flag() {
		return
	}
	for r.ue() != 3 && !r.ended {
		r.ue()
	}
}

// weights reads pred_weight_table.
func (r *sliceHeader) weights() {
	if (r.lists != 1 || !r.pps.weighted) && (r.lists != 2 || r.pps.bipredWeighted != 1) {
		return
	}
	chroma := r.sps.ChromaFormatIdc != 0 && !r.sps.SeparateColourPlaneFlag // slices have chroma samples
	r.ue()
	if chroma {
		r.ue()
	}
	for i := range r.lists {
		for range r.references[i] + 1 {
			r.weight(chroma)
		}
	}
}

// weight reads the weights of a reference.
func (r *sliceHeader) weight(chroma bool) {
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

// marking reads dec_ref_pic_marking.
func (r *sliceHeader) marking() {
	if !r.reference {
		return
	}
	if r.idr {
		r.u(2)
		return
	}
	if !r.flag() {
		return
	}
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

func (r *sliceHeader) quantisers() {
	r.ue() // slice_qp_delta
	if r.kind == sliceSP {
		r.flag() // sp_for_switch_flag
	}
	if r.kind == sliceSP || r.kind == sliceSI {
		r.ue() // slice_qs_delta
	}
}
